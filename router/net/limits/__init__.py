"""What holds requests and bytes back for a while."""
