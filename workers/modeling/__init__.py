"""Pure PyTorch: LuCA modules, heads, learners, routers, baselines, the backbone.  No Ray here."""
