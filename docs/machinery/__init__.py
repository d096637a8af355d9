"""What the documentation site is built with: pages made from the code, so that they cannot go stale."""
