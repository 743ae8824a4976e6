"""Figures for people: terminal tables and progress."""
