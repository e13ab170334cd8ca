"""Arrays between places: one interface, three carriers (:mod:`~seedbed.transport.interface` has their promises)."""
