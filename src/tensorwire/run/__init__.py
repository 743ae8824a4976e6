"""A training script of the user's, run with the plug-in in it, or dry: only to find its variables.

The script is not changed. `site/` reaches each interpreter that it starts.
"""
