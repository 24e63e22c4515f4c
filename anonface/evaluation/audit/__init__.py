"""Attacks on anonymized photos: each one a module, all of them against one :class:`subject.Subject`."""
