"""The guest's view of the disk: its folders, its open files, how much it may write."""
