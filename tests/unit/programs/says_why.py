"""Says why it fails."""

print("why")
raise SystemExit(3)
