"""Lets several processes of one node share its links: `glake relayd` and clients
(docs/relayd.md)."""
