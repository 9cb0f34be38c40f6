"""The live page: a server's last minutes in a browser, and a form to try a model."""
