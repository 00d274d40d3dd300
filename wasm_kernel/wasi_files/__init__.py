"""What a guest sees of the disk: its folders, what it has open there, how much it may write."""
