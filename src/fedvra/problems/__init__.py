"""The clients' cost functions f_i."""
