"""The guest's linear memory as a thing to save and to attach."""
