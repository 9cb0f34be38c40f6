def choose_formats(): pass
