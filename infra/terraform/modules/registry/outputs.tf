output "repository" {
  value = "${var.region}-docker.pkg.dev/${google_artifact_registry_repository.dlock.project}/${google_artifact_registry_repository.dlock.repository_id}"
}
