"""Pictures: each function takes predictions (or plain series) and returns a matplotlib `Figure`."""
