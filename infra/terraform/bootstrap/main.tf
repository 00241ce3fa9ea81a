# Applied first, by hand, once: what everything else stands on, and the alert before anything costs money (NFR-14).
#
#     terraform -chdir=infra/terraform/bootstrap init
#     terraform -chdir=infra/terraform/bootstrap apply -var billing_account=XXXXXX-XXXXXX-XXXXXX -var alert_email=you@example.com
#
# Its own state starts on the machine of whoever applies it. It holds no secret, and is moved into the bucket afterwards.

resource "google_project_service" "needed" {
  for_each = toset([
    "artifactregistry.googleapis.com",
    "billingbudgets.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "compute.googleapis.com",
    "container.googleapis.com",
    "iam.googleapis.com",
    "monitoring.googleapis.com",
    "secretmanager.googleapis.com",
    "servicenetworking.googleapis.com",
    "sqladmin.googleapis.com",
  ])

  service            = each.value
  disable_on_destroy = false
}

module "budget" {
  source = "../modules/budget"

  project_id      = var.project_id
  billing_account = var.billing_account
  monthly_amount  = var.monthly_amount
  currency        = var.currency
  alert_email     = var.alert_email

  depends_on = [google_project_service.needed]
}

resource "google_storage_bucket" "state" {
  name                        = "${var.project_id}-tfstate"
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  versioning {
    enabled = true
  }

  lifecycle_rule {
    condition {
      num_newer_versions = 20
    }
    action {
      type = "Delete"
    }
  }

  # Whoever deletes the state has to mean it.
  lifecycle {
    prevent_destroy = true
  }

  depends_on = [module.budget]
}
