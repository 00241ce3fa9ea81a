variable "project_id" {
  type = string
}

variable "region" {
  type = string
}

variable "workload_pool" {
  type = string
}

variable "namespace" {
  type = string
}

variable "workloads" {
  type = map(object({
    # Reads a secret of its own.
    secret = bool
    # Connects to Cloud SQL.
    database = bool
  }))
  description = "By the name of the service account in the cluster."
}
