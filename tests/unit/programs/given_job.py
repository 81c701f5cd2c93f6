"""Targets of a plan: of a function with and without a job, and none."""

number = 3


def with_job(job):
    return job.steps


def without():
    return "step"
