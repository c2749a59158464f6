"""Evaluation of players: seeded games on several threads, strength, rollouts, start boards, and falls."""
