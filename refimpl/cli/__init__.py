"""The command `refimpl`."""
