"""Why a job does not scale: collects evidence, and maps it to findings by pure functions."""
