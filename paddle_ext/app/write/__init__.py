"""What a run writes: tables, a page to review them, and sorted images."""
