variable "project_id" {
  type = string
}

variable "region" {
  type = string
}

variable "writer" {
  type        = string
  description = "E-mail of the service account that takes the snapshots."
}
