"""`luca bank`: look at module banks and look after them.  Nothing here imports torch or Ray before it must."""
