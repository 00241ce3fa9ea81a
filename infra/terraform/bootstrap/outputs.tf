output "state_bucket" {
  value = google_storage_bucket.state.name
}
