"""A sandbox's memory and files over time: commits, journeys back, forks, and what is said of it."""
