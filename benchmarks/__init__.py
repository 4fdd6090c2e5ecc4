"""Speed, as ratios to what the machine does in the same minute."""
