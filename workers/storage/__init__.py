"""Pure pyarrow: the module bank, the feature cache, atomic files.  No Ray here."""
