"""What is written for another API: recognized, refused where it would be lost, and converted."""
