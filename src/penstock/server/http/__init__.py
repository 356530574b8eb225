"""What surrounds the endpoints: the application, access and limits, streams, errors."""
