"""Settings classes: their fields, values from text and files, and the errors of wrong ones."""
