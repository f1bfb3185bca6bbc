"""Policies at work."""
