# An identity at Google for each workload, which only its own service account in the cluster may take; no key of it ever
# exists. And a place for each secret: what is in it is put there by hand (docs/deploy.md), so it is in no state file.

resource "google_service_account" "workload" {
  for_each = var.workloads

  account_id   = "dlock-${each.key}"
  display_name = "dlock ${each.key}"
}

resource "google_service_account_iam_member" "workload_identity" {
  for_each = var.workloads

  service_account_id = google_service_account.workload[each.key].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.workload_pool}[${var.namespace}/${each.key}]"
}

resource "google_secret_manager_secret" "settings" {
  for_each = { for name, rights in var.workloads : name => rights if rights.secret }

  secret_id = "${each.key}-settings"

  replication {
    user_managed {
      replicas {
        location = var.region
      }
    }
  }
}

resource "google_secret_manager_secret_iam_member" "reader" {
  for_each = { for name, rights in var.workloads : name => rights if rights.secret }

  secret_id = google_secret_manager_secret.settings[each.key].id
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${google_service_account.workload[each.key].email}"
}

resource "google_project_iam_member" "database" {
  for_each = { for name, rights in var.workloads : name => rights if rights.database }

  project = var.project_id
  role    = "roles/cloudsql.client"
  member  = "serviceAccount:${google_service_account.workload[each.key].email}"
}
