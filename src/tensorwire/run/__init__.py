"""Runs a user's training script with the plug-in loaded, or as a dry run that finds its variables.

The script is not changed. `site/` is loaded by each Python interpreter that it starts.
"""
