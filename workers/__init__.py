"""What runs on the cluster: thin Ray actors around plain modelling and storage code."""
