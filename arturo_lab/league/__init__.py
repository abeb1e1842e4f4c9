"""The league: many optimizers on many tasks, untouched and tuned alike, resumed from the rows that are kept."""
