"""Parts that several of the other tools' policies share: measures, triggers, tails, line limits, overflow replay."""
