"""Targets of a plan: a function that takes a job, one that takes none, and no function."""

number = 3


def with_job(job):
    return job.steps


def without():
    return "step"
