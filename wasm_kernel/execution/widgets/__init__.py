"""Comms: what objects in the guest and the front end's page say to each other."""
