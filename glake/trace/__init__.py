"""Allocation traces: what a job asked for and gave back, replayed under allocation policies."""
