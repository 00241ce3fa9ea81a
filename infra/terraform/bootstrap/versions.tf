terraform {
  required_version = ">= 1.9"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 6.50"
    }
  }
}

provider "google" {
  project = var.project_id
  region  = var.region
  # Budgets are asked for in the name of a project.
  user_project_override = true
  billing_project       = var.project_id
}
