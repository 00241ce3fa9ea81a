resource "google_artifact_registry_repository" "dlock" {
  repository_id = "dlock"
  location      = var.region
  format        = "DOCKER"
  description   = "dlock and dlock-lab, one image each"

  docker_config {
    # A tag that is pushed stays what it is.
    immutable_tags = true
  }

  cleanup_policies {
    id     = "keep-recent"
    action = "KEEP"

    most_recent_versions {
      keep_count = 10
    }
  }

  cleanup_policies {
    id     = "delete-old"
    action = "DELETE"

    condition {
      older_than = "2592000s"
    }
  }
}
