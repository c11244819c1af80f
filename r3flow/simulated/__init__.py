"""The demo's stand-in for a real model endpoint; simulated, and named so everywhere."""
