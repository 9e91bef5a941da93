"""What policies of several other tools share: measures, triggers, tails, cut lines, the replay after an overflow."""
