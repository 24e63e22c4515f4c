"""Anonymize faces in photos under a key, and give them back to whoever holds the key."""
