"""An HTTP server for models that run with libwaste: see README.md."""
