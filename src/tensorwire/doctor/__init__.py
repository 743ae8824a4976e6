"""Why a job does not scale: pure functions from what was looked at to findings."""
