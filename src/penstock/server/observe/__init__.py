"""What the server shows of itself: metrics, logs, request traces, the dashboard."""
