output "bucket" {
  value = google_storage_bucket.snapshots.name
}
