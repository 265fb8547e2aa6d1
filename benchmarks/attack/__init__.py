"""Attacks at random: what a user, a crash or a stranger may do to inputs, processes and files."""
