"""The flows the driver composes: streams, sources, features, learning, evaluation, search."""
