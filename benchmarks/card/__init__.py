"""Model cards: what a model is for, what it learned from, and what it is measured to do."""
