# Snapshots of etcd. Whoever writes them may write and not delete; the bucket removes them by itself.
resource "google_storage_bucket" "snapshots" {
  name                        = "${var.project_id}-etcd-backup"
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = true

  lifecycle_rule {
    condition {
      age = 7
    }
    action {
      type = "Delete"
    }
  }
}

resource "google_storage_bucket_iam_member" "writer" {
  bucket = google_storage_bucket.snapshots.name
  role   = "roles/storage.objectCreator"
  member = "serviceAccount:${var.writer}"
}
